# SPDX-License-Identifier: Apache-2.0
"""What is saved, how it is cut and where it goes.

specs.py         SaveSpec, SaveableObject, ShardableTensor
policies.py      sharding policies
sharding.py      sharding callbacks, and their validation
shards.py        cut tensors, write the shards, merge them
saver.py         Saver
options.py       CheckpointOptions
registration.py  registered savers
devices.py       device names
mesh.py          Mesh, Layout
parallel.py      parallel variables
replicas.py      arrays that must be replicas, compared
"""
