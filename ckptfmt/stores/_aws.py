# SPDX-License-Identifier: Apache-2.0
"""Where S3's credentials, region and endpoint come from."""

from __future__ import annotations

import errno
import os
from typing import Any

from ckptfmt.errors import InvalidError, StorageError

CREDENTIALS = (
    "They are looked for in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in the profiles of ~/.aws "
    "(where boto3 is installed: pip install boto3), and in the machine's role; "
    "AWS_SKIP_SIGNATURE=true reads a public bucket without any."
)
# What obstore finds by itself.
_OF_THE_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)


def options() -> dict[str, Any]:
    """Return the arguments of obstore's S3Store that it does not read itself.

    Raises:
        StorageError: boto3 finds no credentials.
    """
    found: dict[str, Any] = {}
    # The names of the AWS tools, in their order, and obstore's own.
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if name in os.environ:
            found["endpoint"] = _endpoint(name, os.environ[name])
            break
    has_credentials = any(os.environ.get(name) for name in _OF_THE_ENVIRONMENT)
    unsigned = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes", "on")
    has_region = any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
    config = os.environ.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config")
    wants_profile = not (has_region and "endpoint" in found) and os.path.isfile(config)
    if wants_profile or not (has_credentials or unsigned):
        found |= _of_boto3(found, credentials=not (has_credentials or unsigned))
    return found


def _endpoint(name: str, text: str) -> str:
    """Return an endpoint as obstore takes it."""
    scheme, separator, rest = text.partition("://")
    if scheme.lower() not in ("http", "https") or not separator or not rest.strip("/"):
        raise InvalidError(
            f"{name} must be a URL such as http://127.0.0.1:9000 or unset, not {text!r}"
        )
    return f"{scheme.lower()}://{rest}"


def _of_boto3(found: dict[str, Any], *, credentials: bool) -> dict[str, Any]:
    """Return the endpoint and region of a profile, and on demand the credentials that boto3 finds;
    nothing if it is not installed."""
    try:
        import boto3  # noqa: PLC0415
        import botocore.session  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415
    except ImportError:
        return {}
    try:
        session = botocore.session.Session()
        profile = session.get_scoped_config()
        more: dict[str, Any] = {}
        # Said here, because a provider of credentials brings the region of its profile.
        if region := os.environ.get("AWS_REGION") or session.get_config_variable("region"):
            more["region"] = region
        if credentials:
            if session.get_credentials() is None:
                raise StorageError(f"no credentials were found. {CREDENTIALS}", errno=errno.EACCES)
            provider = Boto3CredentialProvider(boto3.Session(botocore_session=session))
            provider()  # an expired login fails here
            more["credential_provider"] = provider
        if "endpoint" not in found and {"endpoint_url", "services"} & set(profile):
            more["endpoint"] = session.create_client("s3").meta.endpoint_url
    except (BotoCoreError, ClientError) as error:
        raise StorageError(
            f"boto3 cannot provide credentials: {error}", errno=errno.EACCES
        ) from None
    return more
