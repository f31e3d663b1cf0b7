# SPDX-License-Identifier: Apache-2.0
"""What is saved, how it is cut and where it goes: save specs, sharding policies, savers, meshes."""
