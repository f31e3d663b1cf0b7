# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints are: paths and URLs, and the files beside a checkpoint's own."""
