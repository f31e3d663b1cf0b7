# SPDX-License-Identifier: Apache-2.0
"""What happens to checkpoints over a training: object graphs, trees and checkpoints of objects, and
the directories that managers keep them in."""
