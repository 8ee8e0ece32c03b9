"""What demos and engine tests share: stand-ins for hardware, adapters, a tiny model; no part of the product."""
