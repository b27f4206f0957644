package main

// rueidislock: three keys per lock, renewed by itself. By default it learns of releases by the invalidation
// pushes of client tracking; with DisableCache it polls.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const rueidisModule = "github.com/redis/rueidis"

var rueidisTracking = library{
	id:      "rueidislock",
	name:    "rueidislock",
	variant: "client tracking",
	module:  rueidisModule,
	open:    openRueidisWith(false),
	keys:    rueidisKeys,
	abandon: abandonRueidis,
	own: []check{
		{"woken by invalidation", rueidisWoken},
		{"force takes the lock, the holder learns of it", rueidisForce},
	},
}

var rueidisPolling = library{
	id:      "rueidislock-nocache",
	name:    "rueidislock",
	variant: "DisableCache",
	module:  rueidisModule,
	open:    openRueidisWith(true),
	keys:    rueidisKeys,
	abandon: abandonRueidis,
}

// rueidisKeys: the lock is two of these three.
func rueidisKeys(name string) []string {
	return []string{"rueidislock:0:" + name, "rueidislock:1:" + name, "rueidislock:2:" + name}
}

type rueidisLocker struct {
	locks rueidislock.Locker
	ttl   time.Duration
}

type rueidisHeld struct {
	ttl    time.Duration
	ctx    context.Context
	cancel context.CancelFunc
}

func openRueidisWith(disableCache bool) func([]string, time.Duration) (locker, error) {
	return func(addrs []string, ttl time.Duration) (locker, error) {
		return openRueidis(addrs[0], ttl, disableCache)
	}
}

func openRueidis(addr string, ttl time.Duration, disableCache bool) (locker, error) {
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{
			InitAddress:  []string{addr},
			DisableCache: disableCache,
		},
		KeyValidity: ttl,
		// 20 ms by default: a loaded machine's disk may take longer to sync.
		TryNextAfter: 300 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	return &rueidisLocker{locks, ttl}, nil
}

// rueidisShort: renewed every 750 ms.
const rueidisShort = 1500 * time.Millisecond

func abandonRueidis(l locker) { l.(*rueidisLocker).locks.Client().Close() }

func (l *rueidisLocker) try(_ context.Context, name string) (held, error) {
	ctx, cancel, err := l.locks.TryWithContext(context.Background(), name)
	if errors.Is(err, rueidislock.ErrNotLocked) {
		return nil, errTaken
	}
	if err != nil {
		return nil, err
	}
	return &rueidisHeld{l.ttl, ctx, cancel}, nil
}

func (l *rueidisLocker) wait(ctx context.Context, name string) (held, error) {
	// The lock lives no longer than the context it was asked with: this one ends with ctx only while it waits.
	lockCtx, stop := context.WithCancel(context.Background())
	detach := context.AfterFunc(ctx, stop)
	lockCtx, cancel, err := l.locks.WithContext(lockCtx, name)
	detach()
	if err != nil {
		return nil, err
	}
	return &rueidisHeld{l.ttl, lockCtx, cancel}, nil
}

func (l *rueidisLocker) close() { l.locks.Close() }

// extend: the library renews by itself, every half of the ttl; what is left to see is that it still holds.
func (h *rueidisHeld) extend(context.Context) error {
	time.Sleep(h.ttl)
	return h.ctx.Err()
}

// release cancels; the context tells whether the lock had been lost before.
func (h *rueidisHeld) release(context.Context) error {
	lost := h.ctx.Err() != nil
	h.cancel()
	if lost {
		return errNotHeld
	}
	return nil
}

// rueidisWoken: in this mode the library never polls, so a waiter that gets the lock was woken by a push.
// It must come for a release and for an expiry alike.
func rueidisWoken(ctx context.Context, t *trial) error {
	for _, end := range []string{"release", "expiry"} {
		holder, err := t.open(0, rueidisShort)
		if err != nil {
			return err
		}
		waiter, err := t.open(1, rueidisShort)
		if err != nil {
			return err
		}
		defer waiter.close()
		name := t.name("woken-by-" + end)
		h, err := holder.wait(ctx, name)
		if err != nil {
			return err
		}
		got := make(chan error, 1)
		go func() {
			waitCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			_, err := waiter.wait(waitCtx, name)
			got <- err
		}()
		select {
		case err := <-got:
			return fmt.Errorf("the waiter came through while the lock was held: %v", err)
		case <-time.After(500 * time.Millisecond):
		}
		if end == "release" {
			_ = h.release(ctx)
		} else {
			abandonRueidis(holder)
		}
		if err := <-got; err != nil {
			return fmt.Errorf("not woken by the %s: %w", end, err)
		}
	}
	return nil
}

// rueidisForce: taking a lock by force cancels the old holder's context, by a push.
func rueidisForce(ctx context.Context, t *trial) error {
	holder, err := t.open(0, rueidisShort)
	if err != nil {
		return err
	}
	defer holder.close()
	thief, err := t.open(1, rueidisShort)
	if err != nil {
		return err
	}
	defer thief.close()
	name := t.name("force")
	h, err := holder.wait(ctx, name)
	if err != nil {
		return err
	}
	_, cancel, err := thief.(*rueidisLocker).locks.ForceWithContext(ctx, name)
	if err != nil {
		return err
	}
	defer cancel()
	select {
	case <-h.(*rueidisHeld).ctx.Done():
		return nil
	case <-time.After(rueidisShort / 3): // before the next renewal would have told it
		return errors.New("the old holder did not learn of it")
	}
}
