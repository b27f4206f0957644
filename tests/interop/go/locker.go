package main

// What the common checks need of a lock library: each library's file fits its own words to these.

import (
	"context"
	"errors"
	"time"
)

// errTaken: somebody else holds the lock.
var errTaken = errors.New("taken")

// errNotHeld: the lock is no longer, or never was, the caller's.
var errNotHeld = errors.New("not held")

// held is one lock in the hand of one owner; extend gives it the locker's ttl anew.
type held interface {
	extend(ctx context.Context) error
	release(ctx context.Context) error
}

// locker is one client of a lock library, with connections of its own and one ttl for all its locks.
type locker interface {
	// try asks once; errTaken where another holds the lock.
	try(ctx context.Context, name string) (held, error)
	// wait asks until it gets the lock or the context ends.
	wait(ctx context.Context, name string) (held, error)
	close()
}

// library is one row of the table.
type library struct {
	id      string
	name    string
	variant string
	module  string // the Go module whose version is reported
	// open connects a new client to these addresses: one, or as many as a Redlock library has masters.
	open func(addrs []string, ttl time.Duration) (locker, error)
	// keys are the Redis keys that hold the lock of this name.
	keys func(name string) []string
	// abandon makes the holder stop renewing, as if its process had died; nil where the library never renews by itself.
	abandon func(l locker)
	// masters: speaks to the Redlock listeners as to N masters.
	masters bool
	// own are the checks of what this library alone offers.
	own []check
}

func plainKey(name string) []string { return []string{name} }

// key is the one to look at: the first.
func (l *library) key(name string) string { return l.keys(name)[0] }
