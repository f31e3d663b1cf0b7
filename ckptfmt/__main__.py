# SPDX-License-Identifier: Apache-2.0
"""`python -m ckptfmt`: the same as the `ckptfmt` command."""

import sys

from ckptfmt.cli import main

if __name__ == "__main__":
    sys.exit(main())
