"""``consistency selftest``: a tiny random model through the engines that are installed here, and a report about it.

:mod:`.run` decides and writes; :mod:`.probe`, :mod:`.model`, :mod:`.inference` and :mod:`.training` run in processes of
their own, because they import torch and the engines and may die of it.
"""
