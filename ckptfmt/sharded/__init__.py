# SPDX-License-Identifier: Apache-2.0
"""Save and restore by many processes.

coordinator.py  Coordinator, SingleProcess
rounds.py       process 0 decides, all get the decision
plan.py         which process writes what
staging.py      each process writes parts, process 0 merges them
sharded.py      save, save_async, restore
"""

from ckptfmt._base.doors import door

__getattr__, __dir__, __all__ = door(__name__)
