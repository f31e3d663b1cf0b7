# SPDX-License-Identifier: Apache-2.0
"""What `spec/build_vectors.py` makes the vectors of: nothing of `csrc/`, `ckptfmt/` or
`spec/reference/`."""
