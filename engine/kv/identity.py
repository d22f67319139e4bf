"""Names of KV pages: a keyed 128-bit chain over everything that determines their content.

A page's K and V depend on the model, its dtype, an adapter, and on every token before them at its position. The root
of a chain covers the first three and the salt; each link covers the page's tokens and, through the previous link, all
that came before and therefore the positions. Equal keys mean equal content. A salt nobody else has makes keys nobody
else can meet, so cache hits say nothing across salts.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

KEY_BYTES = 16


def root_key(*, fingerprint: str, kv_dtype: str, adapter: str, salt: str) -> bytes:
    """The key before the first page. Every part is length-prefixed, so no two different tuples collide by joining."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"wye-kv-root")
    for part in (fingerprint, kv_dtype, adapter, salt):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def page_key(previous: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of a full, causally visible page that follows the page named `previous`."""
    data = array("q", token_ids).tobytes()
    return hashlib.blake2b(data, digest_size=KEY_BYTES, key=previous, person=b"wye-kv-page").digest()
