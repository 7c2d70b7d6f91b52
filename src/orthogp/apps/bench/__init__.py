"""Speed against other libraries: `speed`, `predict`, `scaling` and `imports` in `measurements`.

Every contestant (`contestants/`) runs in its own process (`worker`), controlled by `contest`;
`commands` is the command line.
"""
