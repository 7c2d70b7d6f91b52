"""Speed beside other libraries: `speed`, `predict`, `scaling` and `imports` in `measurements`.

Every contestant (`contestants/`) runs in a process of its own (`worker`), told what to do by
`contest`; `commands` is the command line of it.
"""
