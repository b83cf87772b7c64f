"""The adapter to MQTT: one message a frame, between a coordinator and clients that a broker connects. No code travels.

Only this package imports paho; the extra `mqtt` installs it. Everything that a device's listener needs (`connection`,
`messages`, `listener`) imports neither torch nor numpy.
"""
