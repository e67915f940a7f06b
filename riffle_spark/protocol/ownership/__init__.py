"""Who owns what: members, copies, triggers, and from owners to slots."""
