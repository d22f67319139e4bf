"""What `huggingface_hub` raises, said in our own words and with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.sources.errors import AccessDenied, SourceError, SourceNotFound, SourceUnavailable
from engine.sources.options import PullOptions
from engine.sources.reference import HubReference

PUBLIC_ENDPOINT = "https://huggingface.co"


@contextmanager
def hub_errors(ref: HubReference, options: PullOptions) -> Iterator[None]:
    """Turns what `huggingface_hub` raises into our own errors; all else is a failure of the connection."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except SourceError:
        raise
    except HfHubHTTPError as error:
        raise _http_failure(ref, error, options) from error
    except Exception as error:
        # Its transport errors come from a library that differs by version (httpx, httpx2) and share no public base.
        cause = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
        endpoint = options.hub_endpoint or PUBLIC_ENDPOINT
        raise SourceUnavailable(
            f"{ref} could not be fetched from {endpoint} ({cause}); pull again to continue"
        ) from error


def _http_failure(ref: HubReference, error: Any, options: PullOptions) -> SourceError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = error.response.status_code if error.response is not None else 0
    endpoint = options.hub_endpoint or PUBLIC_ENDPOINT
    if isinstance(error, GatedRepoError):
        step = "your token has no access yet" if options.hub_token else "it needs a token (--token, or HF_TOKEN)"
        return AccessDenied(f"{ref.repo} is gated: accept its terms at {endpoint}/{ref.repo}, then pull again; {step}")
    if isinstance(error, RevisionNotFoundError):
        return SourceNotFound(f"{ref.repo} has no revision {ref.revision!r}")
    if isinstance(error, RepositoryNotFoundError):
        return SourceNotFound(f"there is no repository {ref.repo} at {endpoint}, or it is private and needs a token")
    if status in {401, 403}:
        return AccessDenied(f"{endpoint} refuses {ref.repo} (HTTP {status}); check the token (--token, or HF_TOKEN)")
    if status == 404:
        return SourceNotFound(f"{ref} is not there (HTTP 404)")
    return SourceUnavailable(f"{endpoint} answered HTTP {status} for {ref.repo}; try again later")
