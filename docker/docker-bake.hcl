# All images: stack × chip × machine. For each one that is wanted, `make image` makes the context and, beside it, the
# arguments as a second bake file; nothing is computed twice. From the checkout's root:
#
#   make image STACK=verl-0.8 CHIP=a2 PLATFORM=aarch64 CONTEXT_ONLY=1
#   docker buildx bake -f docker/docker-bake.hcl -f dist/image/verl-0.8-a2-aarch64.bake.json verl-0_8-a2-aarch64
#
# Without its arguments a target stops at once: the Dockerfile has no default base.

# Put in front of the image's name: "ghcr.io/OWNER/", say.
variable "PREFIX" {
  default = ""
}

# The package's version, the first part of the tag; without one the image has no name. There is no "latest".
variable "VERSION" {
  default = "local"
}

group "default" {
  targets = ["verl-ascend", "slime-ascend"]
}

target "_image" {
  dockerfile = "Dockerfile"
  # All that the build needs is in its context.
  network = "none"
  # Layers get SOURCE_DATE_EPOCH for every time, so that two builds are the same bytes. The engine's own builder cannot
  # do that; this one can: docker buildx create --use --driver docker-container
  output = ["type=image,rewrite-timestamp=true"]
}

# The base is the public verl image that VERSIONS.lock names.
target "verl-ascend" {
  inherits = ["_image"]
  matrix = {
    stack   = ["verl-0.8", "verl-b7dabd83"]
    chip    = ["a2", "a3"]
    machine = ["x86_64", "aarch64"]
  }
  name      = "${replace(stack, ".", "_")}-${chip}-${machine}"
  context   = "dist/image/${stack}-${chip}-${machine}"
  platforms = [machine == "x86_64" ? "linux/amd64" : "linux/arm64"]
  tags      = VERSION == "" ? [] : ["${PREFIX}verl-ascend:${VERSION}-${stack}-${chip}-${machine}"]
}

# The base is the user's (make image BASE=...): none is published.
target "slime-ascend" {
  inherits = ["_image"]
  matrix = {
    stack   = ["slime-0.2.2", "slime-0.2.4"]
    chip    = ["a2", "a3"]
    machine = ["x86_64", "aarch64"]
  }
  name      = "${replace(stack, ".", "_")}-${chip}-${machine}"
  context   = "dist/image/${stack}-${chip}-${machine}"
  platforms = [machine == "x86_64" ? "linux/amd64" : "linux/arm64"]
  tags      = VERSION == "" ? [] : ["${PREFIX}slime-ascend:${VERSION}-${stack}-${chip}-${machine}"]
}
