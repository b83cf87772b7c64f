"""A real federation: the algorithms, engine and frames of a simulation, between processes and machines.

`terms` is what both ends agree on, `coordinator` and `channel` the server's end, `member` a client's. They know no
transport: a package beside them, as `flower`, implements `channel.Transport` and hands messages to `member.respond`.
"""
