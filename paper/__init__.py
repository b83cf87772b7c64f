"""The TinyProto paper: its experiments, its printed numbers, and our records compared with them."""
