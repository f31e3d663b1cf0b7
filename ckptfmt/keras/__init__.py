# SPDX-License-Identifier: Apache-2.0
"""Save and load the weights of Keras 3 models, on any backend.

As checkpoints that TensorFlow and Keras 2 restore, and as Keras's `.weights.h5` files. The only
package that imports Keras.

model.py       the variables of a model under all names that Keras 2 and 3 give them
layers.py      what layers derive from variables, and what no variable has
pairing.py     stored values and the places that take them
checkpoint.py  a model paired with a checkpoint by the object graph, or by the paths of variables
optimizers.py  the optimizer of a model that takes the state of a stored one
generators.py  the random generators of the process
h5.py          the names in `.weights.h5`
weights.py     load_weights, save_weights
training.py    Checkpoint and CheckpointCallback, for a CheckpointManager
"""

try:
    import keras.src.saving.saving_lib as _keras  # noqa: F401 (Keras 2 has none)
except ImportError as error:
    raise ImportError(f"ckptfmt.keras needs Keras 3 (pip install keras): {error}") from error

from ckptfmt.keras.training import Checkpoint, CheckpointCallback
from ckptfmt.keras.weights import load_weights, save_weights

__all__ = ["Checkpoint", "CheckpointCallback", "load_weights", "save_weights"]


def __dir__() -> list[str]:
    return __all__
