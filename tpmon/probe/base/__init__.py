"""What every probe needs: deadlines, limits of tpmon's own process, sockets."""
