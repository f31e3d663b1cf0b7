# SPDX-License-Identifier: Apache-2.0
"""What several test modules share; nothing in `index` knows the package under test."""
