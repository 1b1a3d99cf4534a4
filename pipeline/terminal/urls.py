"""Removes passwords, keys and signatures from URLs in messages and records."""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+")
_LOGIN = re.compile(r"(?<=://)[^/@]+@")
_SECRET = re.compile(
    r"(?<=[?&])([^=&]*(?:sig|token|secret|passw|credential|key|auth)[^=&]*=)"
    r"[^&]+?(?=[:;,.)\]]*(?:&|$))",
    re.IGNORECASE,
)


def hide_credentials(text: str) -> str:
    """Return `text` without the logins and secret query parameters of the URLs in it."""
    return _URL.sub(lambda url: _SECRET.sub(r"\1***", _LOGIN.sub("", url[0])), text)


def with_login(url: str, known_urls: Iterable[str]) -> str:
    """Return `url` with the login that `hide_credentials` removed, taken from `known_urls`.

    If a known URL differs from `url` only in its credentials, it is returned. Otherwise a known URL
    of the same host supplies the login. Without either, `url` is returned unchanged.
    """
    known_urls = [known_url for known_url in known_urls if "://" in known_url]
    for known_url in known_urls:
        if hide_credentials(known_url) == url:
            return known_url
    parts = urlsplit(url)
    for known_url in known_urls:
        login, _, host_name = urlsplit(known_url).netloc.rpartition("@")
        if login and (urlsplit(known_url).scheme, host_name) == (parts.scheme, parts.netloc):
            return urlunsplit(parts._replace(netloc=f"{login}@{host_name}"))
    return url


def hide_credentials_in(value: Any) -> Any:
    """Return `value`, a text or nested lists and dicts, without credentials in its texts."""
    if isinstance(value, str):
        return hide_credentials(value)
    if isinstance(value, dict):
        return {key: hide_credentials_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [hide_credentials_in(item) for item in value]
    return value
