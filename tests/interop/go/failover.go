package main

// The leader is killed while a lock is held, while a client waits for one, and while workers take turns.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

var failoverChecks = []check{
	{"leader killed: holding", killedHolding},
	{"leader killed: waiting", killedWaiting},
	{"leader killed: working", killedWorking},
}

// overDeathTTL is the ttl of a lock that is held when the leader dies. Where the dead node is one of N masters it
// does not hear of the release, and what it granted stays until then.
const overDeathTTL = 5 * time.Second

// atFollowers opens two clients at the two nodes that will live on, and points the trial's own questions there.
func (t *trial) atFollowers(ttl time.Duration) (a, b locker, closeBoth func(), err error) {
	followers, err := t.control.order("followers")
	if err != nil {
		return nil, nil, nil, err
	}
	if len(followers) != 2 {
		return nil, nil, nil, fmt.Errorf("there are %d followers", len(followers))
	}
	_ = t.ask.Close()
	t.ask = newGoRedis(followers[0])
	if a, err = t.openAt(followers[0], ttl); err != nil {
		return nil, nil, nil, err
	}
	if b, err = t.openAt(followers[1], ttl); err != nil {
		a.close()
		return nil, nil, nil, err
	}
	return a, b, func() { a.close(); b.close() }, nil
}

func (t *trial) killLeader() error {
	_, err := t.control.order("kill-leader")
	return err
}

func (t *trial) restartDead() {
	if _, err := t.control.order("restart-dead"); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// patiently repeats what fails while there is no leader; errTaken and errNotHeld are answers, not failures.
func patiently(ctx context.Context, do func(context.Context) error) error {
	deadline := time.Now().Add(15 * time.Second)
	for {
		tryCtx, cancel := context.WithTimeout(ctx, 6*time.Second)
		err := do(tryCtx)
		cancel()
		if err == nil || errors.Is(err, errTaken) || errors.Is(err, errNotHeld) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// waitLong waits for the lock and asks again where the library gives up on an error.
func waitLong(ctx context.Context, l locker, name string) (held, error) {
	var h held
	err := patiently(ctx, func(context.Context) error {
		waitCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		var err error
		h, err = l.wait(waitCtx, name)
		return err
	})
	return h, err
}

func killedHolding(ctx context.Context, t *trial) error {
	a, b, closeBoth, err := t.atFollowers(overDeathTTL)
	if err != nil {
		return err
	}
	defer closeBoth()
	name := t.name("killed-holding")
	h, err := a.try(ctx, name)
	if err != nil {
		return err
	}
	before, err := t.info(ctx, t.lib.key(name))
	if err != nil {
		return err
	}
	if err := t.killLeader(); err != nil {
		return err
	}
	defer t.restartDead()
	err = patiently(ctx, func(ctx context.Context) error { _, err := b.try(ctx, name); return err })
	if !errors.Is(err, errTaken) {
		return fmt.Errorf("after the kill another client got %v", err)
	}
	if err := patiently(ctx, h.extend); err != nil {
		return fmt.Errorf("extend after the kill: %w", err)
	}
	after, err := t.info(ctx, t.lib.key(name))
	if err != nil {
		return err
	}
	if after.state != "held" || after.fence != before.fence {
		return fmt.Errorf("LOCK.INFO says %+v, before the kill %+v", after, before)
	}
	if err := h.release(ctx); err != nil {
		return fmt.Errorf("release after the kill: %w", err)
	}
	limit := 2 * time.Second
	if t.lib.masters {
		limit = 2 * overDeathTTL
	}
	return t.untilFree(ctx, t.lib.key(name), limit)
}

func killedWaiting(ctx context.Context, t *trial) error {
	a, b, closeBoth, err := t.atFollowers(overDeathTTL)
	if err != nil {
		return err
	}
	defer closeBoth()
	defer t.restartDead()
	return t.waitThrough(ctx, "killed-waiting", a, b, func() error {
		time.Sleep(200 * time.Millisecond)
		if err := t.killLeader(); err != nil {
			return err
		}
		_, err := t.control.order("leader")
		return err
	})
}

// killedWorking: the workers use all nodes, so those of the dead one see broken connections until its restart.
func killedWorking(ctx context.Context, t *trial) error {
	const rounds = 15
	if _, _, closeBoth, err := t.atFollowers(longTTL); err != nil {
		return err
	} else {
		closeBoth()
	}
	w := &workers{trial: t, name: t.name("killed-working"), ttl: 4 * time.Second, count: 4,
		onError: func(error) error { return nil }}
	ended, finished := make(chan struct{}), make(chan error, 1)
	go func() {
		finished <- w.run(ctx, func() bool {
			select {
			case <-ended:
				return true
			default:
				return false
			}
		})
	}()
	goesOn := func(when string) error {
		target := w.stayed() + rounds
		return eventually(15*time.Second, fmt.Sprintf("%d more turns %s", rounds, when), func() (bool, error) {
			return w.stayed() >= target, nil
		})
	}
	err := goesOn("before the kill")
	if err == nil {
		err = t.killLeader()
	}
	if err == nil {
		err = goesOn("after the kill")
	}
	t.restartDead()
	if err == nil {
		err = goesOn("after the restart")
	}
	close(ended)
	if runErr := <-finished; err == nil {
		err = runErr
	}
	if err != nil {
		return err
	}
	return w.judge()
}
