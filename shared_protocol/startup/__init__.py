"""What both services do before and around serving: command line, log, vLLM's CPU build, server.

Importing it takes no vLLM and no torch; what needs them imports them when it is called.
"""
