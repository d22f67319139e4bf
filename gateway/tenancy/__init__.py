"""Tenants, their keys and what they may use. Nothing here is in force until the server has an administrator's key."""
