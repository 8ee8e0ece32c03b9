# A stand-in for the public Ascend images, for `make image-test` alone: Debian's Python 3.11 and nothing that computes.
FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/python3.11/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1
RUN python3.11 -m venv /usr/local/python3.11
CMD ["bash"]
