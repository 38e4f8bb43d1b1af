"""The gate to object stores (s3://, gs://, az://): settings, file systems that list and read, what errors mean.

Listing, footers and text go through Arrow's file systems, rows through Polars; both are told the same. What is not in
`storage_options` they take from where such programs look (AWS_ACCESS_KEY_ID, ~/.aws, the machine's role, …), each
where it runs, so that keys from the environment are in no part. No key is in a repr or in an error of ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from falconet.errors import ConfigError, DataError, suggest

if TYPE_CHECKING:
    from pyarrow import fs

_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az"}

# For each setting: what Arrow calls it, what Polars calls it, what other programs call it.
_SETTINGS: dict[str, dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "s3": {
        "access_key_id": ("access_key", "aws_access_key_id", ("key",)),
        "secret_access_key": ("secret_key", "aws_secret_access_key", ("secret",)),
        "session_token": ("session_token", "aws_session_token", ("token",)),
        "region": ("region", "aws_region", ("default_region",)),
        "endpoint_url": ("endpoint_override", "aws_endpoint_url", ("endpoint",)),
        "anonymous": ("anonymous", "aws_skip_signature", ("anon", "skip_signature")),
    },
    "gs": {"anonymous": ("anonymous", "google_skip_signature", ("anon", "token"))},
    "az": {
        "account_name": ("account_name", "azure_storage_account_name", ()),
        "account_key": ("account_key", "azure_storage_account_key", ()),
        "sas_token": ("sas_token", "azure_storage_sas_token", ()),
    },
}
_ENVIRONMENT: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {
        "endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    },
    "gs": {},
    "az": {"account_name": ("AZURE_STORAGE_ACCOUNT_NAME",)},
}
_CREDENTIALS = {
    "s3": 'storage_options={"access_key_id": …, "secret_access_key": …}, or AWS_ACCESS_KEY_ID and '
    "AWS_SECRET_ACCESS_KEY in the environment",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS names the file with the key",
    "az": 'storage_options={"account_name": …, "account_key": …}',
}
_FLAGS = {"true": "true", "1": "true", "anon": "true", "false": "false", "0": "false"}  # "anon": gcsfs' token
_REFUSED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT", "EXPIRED_TOKEN")


_LOST_SLASH = re.compile(rf"^({'|'.join(_SCHEMES)}):/(?=[^/])")


def as_text(path: str | os.PathLike[str]) -> str:
    """A path or an address as text. A Path leaves one slash of the two of `s3://`."""
    return _LOST_SLASH.sub(r"\1://", os.fspath(path))


def is_url(path: str) -> bool:
    """Whether it is an address in a store. One letter and `://` are a drive of Windows."""
    return re.match(r"[a-zA-Z][\w+.-]+://", path) is not None


@dataclass(frozen=True)
class ObjectStore:
    """A bucket (a container, in Azure) and how to reach it."""

    scheme: str
    bucket: str
    settings: tuple[tuple[str, str], ...] = field(repr=False)  # by our names

    @cached_property
    def filesystem(self) -> fs.FileSystem:
        """Arrow's file system. Paths in it begin with the bucket."""
        from pyarrow import fs

        options: dict[str, Any] = {_SETTINGS[self.scheme][name][0]: value for name, value in self.settings}
        if "anonymous" in options:
            options["anonymous"] = options["anonymous"] == "true"
        if self.scheme == "gs":
            return fs.GcsFileSystem(**options)
        if self.scheme == "az":
            return fs.AzureFileSystem(**options)
        if endpoint := options.pop("endpoint_override", None):
            options["scheme"], _, options["endpoint_override"] = endpoint.partition("://")
            options.setdefault("region", "us-east-1")  # a store of one's own has no regions, but signs with one
        elif "region" not in options:
            with self.errors(f"`{self.url('')}`"):
                options["region"] = fs.resolve_s3_region(self.bucket)
        return fs.S3FileSystem(**options)

    @cached_property
    def polars(self) -> tuple[tuple[str, str], ...]:
        """The `storage_options` of a scan in Polars."""
        options = {_SETTINGS[self.scheme][name][1]: value for name, value in self.settings}
        if self.scheme == "s3":
            if options.get("aws_endpoint_url", "").startswith("http://"):
                options["aws_allow_http"] = "true"
            options.setdefault("aws_region", self.filesystem.region)
        return tuple(options.items())

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self.bucket}/{path}"

    @contextmanager
    def errors(self, where: str) -> Iterator[None]:
        """Say what Arrow met in this store as a DataError: no such bucket, no access, nobody there."""
        try:
            yield
        except FileNotFoundError as error:
            raise DataError(f"no object {where}") from error
        except OSError as error:
            said = str(error).partition("(Request ID")[0].strip()
            if "NO_SUCH_BUCKET" in said or f"Bucket '{self.bucket}' not found" in said:
                raise DataError(f"no bucket `{self.bucket}` in {self.scheme}://", hint=f"for {where}") from error
            if any(word in said for word in _REFUSED):
                hint = f"credentials: {_CREDENTIALS[self.scheme]}"
                raise DataError(f"access to {where} is refused: {said}", hint=hint) from error
            if "NETWORK_CONNECTION" in said:
                endpoint = dict(self.settings).get("endpoint_url", f"{self.scheme}'s own servers")
                raise DataError(f"{endpoint} cannot be reached for {where}: {said}") from error
            raise DataError(f"{where} cannot be read: {said}") from error


def open_store(url: str, options: Mapping[str, object]) -> tuple[ObjectStore, str]:
    """The store an address lies in, and the path within its bucket."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if scheme.lower() not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise DataError(f"{scheme}:// addresses are not read", hint=f"{known}, or a path on this machine")
    if "@" in bucket:
        raise ConfigError(f"a {scheme}:// address holds credentials", hint="give them as storage_options")
    if not bucket:
        raise DataError(f"`{url}` names no bucket", hint=f"{scheme}://bucket/folder")
    scheme = _SCHEMES[scheme.lower()]
    return ObjectStore(scheme, bucket, _settings(scheme, options)), path


def _settings(scheme: str, options: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """The options by our names, as text, with what the environment has in place of those that are not given."""
    known = _SETTINGS[scheme]
    names = {spelled: name for name in known for spelled in _spellings(scheme, name)}
    given: dict[str, str] = {}
    for spelled in options:
        if spelled not in names:
            raise ConfigError(
                f"storage_options has `{spelled}`, which {scheme}:// does not know", hint=suggest(spelled, known)
            )
        if (other := given.setdefault(names[spelled], spelled)) != spelled:
            raise ConfigError(
                f"storage_options has both `{other}` and `{spelled}`, which are one setting",
                hint="leave one of them out",
            )
    settings = {}
    for name in known:
        if name in given:
            settings[name] = _text(given[name], options[given[name]], is_flag=name == "anonymous")
        elif value := next(filter(None, map(os.environ.get, _ENVIRONMENT[scheme].get(name, ()))), None):
            settings[name] = value
    endpoint = settings.get("endpoint_url")
    if endpoint is not None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError("storage_options: `endpoint_url` is no address", hint='like "https://minio.example:9000"')
        settings["endpoint_url"] = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    return tuple(settings.items())


def _spellings(scheme: str, name: str) -> tuple[str, ...]:
    """What a setting may be called: our name, Polars' name, those of other programs with and without its prefix."""
    _, polars, others = _SETTINGS[scheme][name]
    prefix = polars.removesuffix(name)
    return tuple(dict.fromkeys((name, polars, *others, *(prefix + other for other in others))))


def _text(name: str, value: object, *, is_flag: bool) -> str:
    if not isinstance(value, (str, bool)):
        raise ConfigError(f"storage_options: `{name}` is a {type(value).__name__}", hint="a string is needed")
    if not is_flag:
        return str(value)
    if (found := _FLAGS.get(str(value).lower())) is None:
        raise ConfigError(f"storage_options: `{name}` is neither true nor false")
    return found
