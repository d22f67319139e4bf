"""Administration: /v1/organization as OpenAI has it, so that its SDKs work, and /v1/admin for what it lacks."""

from gateway.routes.admin import accounts, admin_keys, audit, files, keys, limits, projects, tenants, usage

ADMIN_ROUTES = (projects, accounts, keys, limits, admin_keys, usage, audit, tenants, files)
"""Modules with routes, in the order of the API's description."""
