# SPDX-License-Identifier: Apache-2.0
"""What must be set before any test module imports its framework."""

import os

# Meshes need several devices.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Keras reads it once, when it is imported. A test that forks cannot use TensorFlow.
os.environ.setdefault("KERAS_BACKEND", "torch")
