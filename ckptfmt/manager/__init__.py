# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints stay, and which is the newest.

manager.py          CheckpointManager
adapted.py          what it takes of a framework's state
retention.py        which checkpoints are retained: no clock, no files
records.py          the state file and the metrics of a manager
latest.py           the newest checkpoint of a directory
restoring.py        the newest sound one, restored
pruning.py          old checkpoints removed without their manager
training_state.py   TrainingState
"""
