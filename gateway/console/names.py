"""What tenants are called, for pages that show whom things belong to."""

from __future__ import annotations

from gateway.errors import QuotaStoreUnavailable
from gateway.services import Services


async def tenant_names(services: Services) -> dict[str, str]:
    """Names of tenants by id; none where Redis does not answer: the rest can be shown without."""
    if services.tenants is None:
        return {}
    try:
        return {tenant.id: tenant.name for tenant in await services.tenants.directory.tenants()}
    except QuotaStoreUnavailable:
        return {}
