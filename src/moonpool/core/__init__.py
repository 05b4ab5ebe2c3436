"""Words every room shares: errors, units, clocks, configuration, wire framing. Imports nothing
upward and does no work of its own.
"""
