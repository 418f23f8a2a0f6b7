"""Forebay backend for Acme's cards: devices of kind mtia. The import opens no device."""
