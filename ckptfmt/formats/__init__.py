# SPDX-License-Identifier: Apache-2.0
"""Other checkpoint formats, as conversions read and write them.

The module of a format has `open_tensors(path)`, a context manager that gives its tensors and text
metadata, and `holds(dtype)`; one that is written has `write(path, kinds, metadata, read)` as well.
`tensors` says what these are, `convert` uses them.
"""
