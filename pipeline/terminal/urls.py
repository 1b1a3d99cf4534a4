"""URLs in messages and records: passwords, keys and signatures are left out."""

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


def without_credentials(text: str) -> str:
    """Return `text` without the logins and secret query parameters of the URLs in it."""
    return _URL.sub(lambda url: _SECRET.sub(r"\1***", _LOGIN.sub("", url[0])), text)


def with_login(url: str, given: Iterable[str]) -> str:
    """Return `url` with the login that `without_credentials` removed, taken from the URLs `given`.

    A URL of the same host gives its login, an equal one its secret parameters; without either,
    `url` is returned as it is.
    """
    given = [one for one in given if "://" in one]
    for one in given:
        if without_credentials(one) == url:
            return one
    parts = urlsplit(url)
    for one in given:
        login, _, host = urlsplit(one).netloc.rpartition("@")
        if login and (urlsplit(one).scheme, host) == (parts.scheme, parts.netloc):
            return urlunsplit(parts._replace(netloc=f"{login}@{host}"))
    return url


def without_credentials_in(value: Any) -> Any:
    """Return `value`, a text or nested lists and dicts, with all its texts
    `without_credentials`.
    """
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, dict):
        return {key: without_credentials_in(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_credentials_in(one) for one in value]
    return value
