# SPDX-License-Identifier: Apache-2.0
"""Golden outputs of the `ckptfmt` command, and what its tests share."""
