"""The story of order 4711, told by `postroom demo` with real processes and a real SIGKILL."""
