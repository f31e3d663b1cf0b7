# SPDX-License-Identifier: Apache-2.0
"""Object graphs and trees."""
