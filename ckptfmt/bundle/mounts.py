# SPDX-License-Identifier: Apache-2.0
"""Whether other machines may write to a file system (Linux only; others count as local)."""

from __future__ import annotations

# Network file systems, by their names in Linux.
REMOTE = frozenset(
    [
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre"),
        *("ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs"),
        *("virtiofs", "wekafs"),
    ]
)


def is_remote(fd: int) -> bool:
    """Return whether Linux lists the file system of the file or directory as one that other
    machines may write to, which may not see our locks."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as stream:
            mount = next(line.split()[1] for line in stream if line.startswith(b"mnt_id:"))
        with open("/proc/self/mountinfo", "rb") as stream:
            line = next(line for line in stream if line.split(b" ", 1)[0] == mount)
    except (OSError, StopIteration, IndexError):
        return False
    kind = line.partition(b" - ")[2].split(b" ")[0].decode(errors="replace")
    return kind.startswith("fuse") or kind in REMOTE
