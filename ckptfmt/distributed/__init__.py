# SPDX-License-Identifier: Apache-2.0
"""How the processes of one job agree: the Coordinator and the engines it runs over."""
