# SPDX-License-Identifier: Apache-2.0
"""Which processes see the locks of a file, by the mount that it is on (Linux only; a file system of
another system counts as local)."""

from __future__ import annotations

# Network file systems, by their names in Linux.
REMOTE = frozenset(
    [
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre"),
        *("ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs"),
        *("virtiofs", "wekafs"),
    ]
)

# Those of them that show a lock to all machines, unless mounted with "localflocks".
_CLUSTERED = frozenset(["ceph", "gfs2", "ocfs2"])


def is_remote(fd: int) -> bool:
    """Return whether Linux lists the file system of the file or directory as one that other
    machines may write to, which may not see our locks."""
    return _is_remote(_mount(fd)[0])


def shares_locks(fd: int) -> bool:
    """Return whether all processes that write to the file system of the file see a lock that one of
    them takes with flock: it is local, or its mount options say that the server has the locks."""
    kind, options = _mount(fd)
    if kind in ("nfs", "nfs4"):
        # "posix" keeps only the locks of fcntl on this machine.
        return not options.isdisjoint(["local_lock=none", "local_lock=posix"])
    if kind == "lustre":
        return "flock" in options
    if kind in _CLUSTERED:
        return "localflocks" not in options
    return not _is_remote(kind)


def _is_remote(kind: str) -> bool:
    return kind.startswith("fuse") or kind in REMOTE


def _mount(fd: int) -> tuple[str, frozenset[str]]:
    """Return the kind of the file system and its options; "" and none if Linux does not say."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as stream:
            mount = next(line.split()[1] for line in stream if line.startswith(b"mnt_id:"))
        with open("/proc/self/mountinfo", "rb") as stream:
            line = next(line for line in stream if line.split(b" ", 1)[0] == mount)
    except (OSError, StopIteration, IndexError):
        return "", frozenset()
    kind, *_, options = line.decode(errors="replace").partition(" - ")[2].split() or ("", "")
    return kind, frozenset(options.split(","))
