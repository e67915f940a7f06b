"""Ownership of key-groups: members, copies, triggers, and from owners to slots."""
