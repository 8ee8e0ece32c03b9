"""Part of the stand-in for torchvision; see there."""
