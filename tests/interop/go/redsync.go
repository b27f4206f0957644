package main

// redsync v4 over go-redis: with one pool, and as Redlock with one pool per Redlock listener.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const redsyncModule = "github.com/go-redsync/redsync/v4"

var redsyncOne = library{
	id:     "redsync",
	name:   "redsync",
	module: redsyncModule,
	open:   openRedsync,
	keys:   plainKey,
	own: []check{
		{"valid", redsyncValid},
		{"extend of another's lock refused", redsyncExtendStranger},
		{"set-nx on extend takes a new fence", redsyncSetNXOnExtend},
	},
}

var redsyncMasters = library{
	id:      "redsync-masters",
	name:    "redsync",
	variant: "3 masters",
	module:  redsyncModule,
	open:    openRedsync,
	keys:    plainKey,
	masters: true,
	own:     []check{{"valid", redsyncValid}},
}

type redsyncLocker struct {
	clients []*redis.Client
	rs      *redsync.Redsync
	ttl     time.Duration
}

type redsyncHeld struct{ mutex *redsync.Mutex }

func openRedsync(addrs []string, ttl time.Duration) (locker, error) {
	l := &redsyncLocker{ttl: ttl}
	var pools []redsyncredis.Pool
	for _, addr := range addrs {
		client := newGoRedis(addr)
		l.clients = append(l.clients, client)
		pools = append(pools, goredis.NewPool(client))
	}
	l.rs = redsync.New(pools...)
	return l, nil
}

// mutex: redsync gives each server 5% of the ttl to answer, which for the short ttls of these checks is
// less than a loaded machine's disk may take; half of the ttl is given instead.
func (l *redsyncLocker) mutex(name string, more ...redsync.Option) *redsync.Mutex {
	options := []redsync.Option{
		redsync.WithExpiry(l.ttl),
		redsync.WithTimeoutFactor(0.5),
		redsync.WithTries(1000),
		redsync.WithRetryDelay(50 * time.Millisecond),
	}
	return l.rs.NewMutex(name, append(options, more...)...)
}

func (l *redsyncLocker) try(ctx context.Context, name string) (held, error) {
	m := l.mutex(name)
	err := m.TryLockContext(ctx)
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) {
		return nil, errTaken
	}
	if err != nil {
		return nil, err
	}
	return &redsyncHeld{m}, nil
}

func (l *redsyncLocker) wait(ctx context.Context, name string) (held, error) {
	m := l.mutex(name)
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return &redsyncHeld{m}, nil
}

func (l *redsyncLocker) close() {
	for _, c := range l.clients {
		_ = c.Close()
	}
}

func (h *redsyncHeld) extend(ctx context.Context) error {
	return trueOrNotHeld(h.mutex.ExtendContext(ctx))
}

func (h *redsyncHeld) release(ctx context.Context) error {
	return trueOrNotHeld(h.mutex.UnlockContext(ctx))
}

func trueOrNotHeld(ok bool, err error) error {
	var taken *redsync.ErrTaken
	switch {
	case ok:
		return nil
	case err == nil, errors.As(err, &taken), errors.Is(err, redsync.ErrLockAlreadyExpired):
		return errNotHeld
	default:
		return err
	}
}

func redsyncValid(ctx context.Context, t *trial) error {
	opened, err := t.open(0, 800*time.Millisecond)
	if err != nil {
		return err
	}
	defer opened.close()
	l := opened.(*redsyncLocker)
	m := l.mutex(t.name("valid"))
	if err := m.LockContext(ctx); err != nil {
		return err
	}
	if ok, err := m.ValidContext(ctx); !ok {
		return fmt.Errorf("Valid() of a fresh lock is false: %v", err)
	}
	return eventually(5*time.Second, "Valid() turns false after the ttl", func() (bool, error) {
		ok, _ := m.ValidContext(ctx)
		return !ok, nil
	})
}

func redsyncExtendStranger(ctx context.Context, t *trial) error {
	opened, err := t.open(0, longTTL)
	if err != nil {
		return err
	}
	defer opened.close()
	l := opened.(*redsyncLocker)
	name := t.name("extend-stranger")
	owner := l.mutex(name)
	if err := owner.LockContext(ctx); err != nil {
		return err
	}
	stranger := l.mutex(name, redsync.WithValue("stranger"))
	if err := trueOrNotHeld(stranger.ExtendContext(ctx)); !errors.Is(err, errNotHeld) {
		return fmt.Errorf("a stranger's Extend gave %v", err)
	}
	if err := trueOrNotHeld(stranger.UnlockContext(ctx)); !errors.Is(err, errNotHeld) {
		return fmt.Errorf("a stranger's Unlock gave %v", err)
	}
	return trueOrNotHeld(owner.UnlockContext(ctx))
}

// redsyncSetNXOnExtend: an extend that brings an expired lock back is a new grant, so the fence must rise.
func redsyncSetNXOnExtend(ctx context.Context, t *trial) error {
	opened, err := t.open(0, 800*time.Millisecond)
	if err != nil {
		return err
	}
	defer opened.close()
	l := opened.(*redsyncLocker)
	name := t.name("setnx-on-extend")
	m := l.mutex(name, redsync.WithSetNXOnExtend())
	if err := m.LockContext(ctx); err != nil {
		return err
	}
	before, err := t.info(ctx, name)
	if err != nil {
		return err
	}
	if err := t.untilFree(ctx, name, 5*time.Second); err != nil {
		return err
	}
	if ok, err := m.ExtendContext(ctx); !ok {
		return fmt.Errorf("Extend after the expiry: %v", err)
	}
	after, err := t.info(ctx, name)
	if err != nil {
		return err
	}
	if after.fence <= before.fence {
		return fmt.Errorf("fence %d after the revival, %d before it", after.fence, before.fence)
	}
	return nil
}
