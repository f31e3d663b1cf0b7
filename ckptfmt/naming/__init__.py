# SPDX-License-Identifier: Apache-2.0
"""What the stored names mean: from stored names to what people call them, and back."""
