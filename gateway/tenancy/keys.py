"""API keys of tenants: `sk-wye-ID-SECRET`. The id may be shown and logged; of the secret only a hash is kept.

The secret has 256 random bits, so a plain hash of it tells nothing, and nothing has to be slow.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_CHARS = 16
_FORM = re.compile(r"sk-wye-([0-9a-z]{16})-([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """A key as it came with a request; whether it is known is not said.

    Attributes:
        key_id: What it is called: `key_...`.
        digest: Of its secret.
    """

    key_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that has just been made; `value` is shown once.

    Attributes:
        key_id: What it is called.
        value: All of it.
        digest: What is kept of its secret.
        tail: Its last characters, by which people know it again.
    """

    key_id: str
    value: str
    digest: str
    tail: str


def new_id(mark: str) -> str:
    """A random id: `mark` and 16 characters."""
    return mark + "".join(secrets.choice(_ALPHABET) for _ in range(_ID_CHARS))


def make_key(key_id: str = "") -> NewKey:
    """A new secret.

    Args:
        key_id: Of a key that exists and gets another secret; a new one if left out.
    """
    key_id = key_id or new_id("key_")
    secret = secrets.token_urlsafe(32)
    return NewKey(key_id, f"sk-wye-{key_id.removeprefix('key_')}-{secret}", digest_of(secret), secret[-4:])


def read_key(value: str) -> PresentedKey | None:
    """The key that `value` has the form of, or None."""
    match = _FORM.fullmatch(value)
    return None if match is None else PresentedKey(f"key_{match[1]}", digest_of(match[2]))


def digest_of(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(b"wye key\0" + secret.encode()).hexdigest()


def redacted(key_id: str, tail: str) -> str:
    """A key as it may be shown."""
    return f"sk-wye-{key_id.removeprefix('key_')}-...{tail}"
