"""Read the machine around the job: control groups, network, sockets, output, own cost."""
