# SPDX-License-Identifier: Apache-2.0
"""Object graphs: saving and restoring Python objects and trees through one engine.

save      View or TreeView --walk--> Locals --content_of--> graph, tensors --> Saver or writer
restore   reader --> graph --Changes--> chosen graph --matching--> (node, Local) pairs
          --assigning--> arrays read into, values replaced, methods called
load      reader --> graph --build--> new tree

nodes.py        TreeNode, and the kinds of trees in a graph
trackable.py    Trackable, and the values that wait for attributes
traversal.py    what children an object has and what is saved of it; the walk over all objects
serializing.py  from objects to a graph and its tensors
layouts.py      the layouts of arrays, by their paths
choice.py       the graph with the chosen values only, under their new names
matching.py     which object gets the values of which node
assigning.py    check everything, read, write
status.py       restore once, and what came of it
build.py        from a graph or names to a new tree; a graph compared with the tensors
saves.py        one save or restore, by one process or many
checkpoint.py   Checkpoint: the engine with a counter, a save queue and the state file
trees.py        save_tree, load_tree, load_tree_into: the engine without objects to keep
"""
