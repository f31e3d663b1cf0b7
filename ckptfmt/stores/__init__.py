# SPDX-License-Identifier: Apache-2.0
"""Object stores: checkpoints under URLs.

`s3://`, `gs://`, `az://`, `http://`, `https://` and `memory://` are reached through obstore (extra
`cloud`), other schemes through fsspec. Credentials come from the environment, as obstore or the
fsspec file system reads them; `mount` gives a store with other settings.

client.py           what is needed of a store's client
objects.py          the storage seam over a client
leftovers.py        what killed writers left, by its age
waiting.py          requests with a limit on silence
obstore_client.py   stores through obstore
fsspec_client.py    stores through fsspec
_aws.py             S3's credentials, region and endpoint
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from ckptfmt._base.arguments import invalid, wrong
from ckptfmt.errors import CkptfmtError, StorageError
from ckptfmt.stores.client import Client
from ckptfmt.stores.objects import Objects

__all__ = ["mount", "store_for"]


def __dir__() -> list[str]:
    return __all__


_OBSTORE = {"s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "http", "https", "memory"}

_mounted: dict[str, Client] = {}
_lock = threading.Lock()


def mount(url: str, store: Any) -> None:
    """Use a store of your own for all URLs that begin with `url`, in this process.

    Args:
        url: such as "s3://bucket", or a name of your own, "lab://".
        store: an obstore store, whose keys are the rest of the URL, or an fsspec file system, which
            gets the rest of the URL as a path. None: undo it.

    Raises:
        InvalidError: `url` is not a URL, or `store` is neither of these.
    """
    if not isinstance(url, str):
        raise wrong("url", "a str", url)
    root = url if url.endswith("://") else url.rstrip("/")
    if "://" not in root:
        raise invalid("url", f"mount(url, store): {url!r} is not a URL such as 's3://bucket'")
    with _lock:
        if store is None:
            _mounted.pop(root, None)
        else:
            _mounted[root] = _client_over(store, url)


def _client_over(store: Any, url: str) -> Client:
    kinds = {base.__module__.partition(".")[0] for base in type(store).__mro__}
    for package in ("obstore", "fsspec"):
        if package in kinds:
            client: Client = _adapter(package, url).client(store)
            return client
    raise invalid(
        "store",
        "mount(url, store): store must be an obstore store or an fsspec file system, "
        f"not {type(store).__name__}",
    )


def _adapter(package: str, url: str) -> Any:
    try:
        return importlib.import_module(f"ckptfmt.stores.{package}_client")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise StorageError(
            f"{package} is needed for this URL: pip install obstore fsspec", path=url
        ) from None


def store_for(url: str) -> Objects:
    """Return a store for one handle on objects near a URL.

    Raises:
        StorageError: there is no store for such a URL, or its package is missing.
    """
    if not isinstance(url, str):
        raise wrong("url", "a str", url)
    scheme, _, rest = url.partition("://")
    with _lock:
        roots = [root for root in _mounted if _is_below(url, root)]
        if roots:
            root = max(roots, key=len)
            return Objects(root, _mounted[root])
        bucket = rest.partition("/")[0]
        root = f"{scheme}://" if scheme == "memory" else f"{scheme}://{bucket}"
        package = "obstore" if scheme in _OBSTORE else "fsspec"
        try:
            client: Client = _adapter(package, url).open_root(root)
        except OSError as error:
            if isinstance(error, CkptfmtError):
                raise
            raise StorageError(error.strerror or str(error), errno=error.errno, path=url) from None
        _mounted[root] = client
        return Objects(root, client)


def _is_below(url: str, root: str) -> bool:
    return url.startswith(root) and (root.endswith("/") or url[len(root) :][:1] in ("", "/"))
