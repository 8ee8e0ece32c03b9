"""What runs inside the training and inference processes while a collection run is on.

Standard library only, and nothing of the rest of this project: these modules are imported by woven upstream files
inside training containers. torch and msprobe are touched only once a dump is on.
"""
